"""`embedserve bench`: measures how fast a model runs on this machine.

texts      what is embedded: a file of the user's, or a mix of lengths
products   the rate of matrix products that the machine reaches, and how many operations a text takes
load       clients in a closed loop on the engine and the scheduler, without HTTP
bench      one run: loads the model, measures, suggests
report     the result for people and for programs
picture    bars as SVG
"""
