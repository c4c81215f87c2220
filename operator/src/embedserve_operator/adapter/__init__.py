"""Serves the custom metrics API to autoscalers.

`queries`, `selectors`, `metrics_page`, `responses`, `targets`, `trust` and `registration` decide and are
pure; `scraper`, `certificates`, `certificate_rotator`, `server` and `registrar` act.
"""
