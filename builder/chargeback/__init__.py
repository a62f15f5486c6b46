"""Who used what: the usage ledger that serving writes, and the reports made of it."""
