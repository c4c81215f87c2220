"""The custom metrics API: answers the autoscaler's questions from what the pods say at their management port.

`questions`, `selectors`, `pages`, `answers`, `trust` and `registration` decide and are pure; `scraper`, `identity`,
`server`, `serve` and `registrar` act.
"""
