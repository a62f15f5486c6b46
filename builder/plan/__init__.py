"""Is a pipeline fit to be built here: compatibility rules, memory fit, cost model.

`make.make_plan` opens the checkpoints; everything else works on a PlanContext. Nothing is imported here, so that
`doctor` can look at the machine (host, finding) where torch itself is broken.
"""
