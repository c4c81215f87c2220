"""Measures a model without HTTP for `embedserve bench`.

bench            one run: loads the model, measures, suggests settings
texts            the texts that are embedded: a file of the user's, or a built-in mix of lengths
load             clients in a closed loop on the engine and the scheduler, without HTTP
matrix_products  the floating-point operations of a text, and the rate that the machine reaches
report           the report as a table and as a chart
bar_chart        bars as SVG
"""
