"""Running a finished bundle: link small C programs against it, run them on a target, judge the results."""
