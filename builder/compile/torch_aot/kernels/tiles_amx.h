// The shapes of the AMX tiles that the products need. A thread loads a configuration only when it differs from the one it has.
#pragma once
#include <cstdint>

#include <immintrin.h>

enum class Shape : int { none, bf16, attention };

// C tiles 0..3 and A tiles 4, 5 have `rows` rows, B tiles 6, 7 are full but for what is said here.
//   bf16: A 32 inputs, B 32 inputs x 16 outputs.
//   attention: A 4 and B 6 as bf16 (32 dims); A 5 and B 7 hold sixteen positions, half of that.
static void use_tiles(Shape shape, int rows) {
  struct Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  };
  static thread_local int loaded = 0;
  if (rows > 16) rows = 16;
  const int wanted = shape == Shape::none ? 0 : (int)shape * 32 + rows;
  if (wanted == loaded) return;
  loaded = wanted;
  if (!wanted) return _tile_release();
  Config config{1, 0, {}, {}, {}};
  for (int i = 0; i < 8; i++) config.bytes[i] = 64, config.rows[i] = i < 6 ? rows : 16;
  if (shape == Shape::attention) config.bytes[5] = 32, config.rows[7] = 8;
  _tile_loadconfig(&config);
}
