"""How far vectors may be from the reference: the only place with such numbers."""

# float32 against float32, another order of summation (design: "Right before compatible").
FP32_MAX_ABS_DIFF = 1e-4
# The same text alone, in a batch, or shuffled.
NEIGHBOUR_MAX_ABS_DIFF = 1e-5
# Hidden states of tiny random models, whose values are of size 1 to 5.
TINY_MODEL_MAX_ABS_DIFF = 2e-5
# 16 bit against float32 (design: "Right before compatible").
SIXTEEN_BIT_MIN_COSINE = 0.9995
# 8 bit against float32, every token of tiny random models; of vectors `parity.LEAST_COSINE` asks for more.
EIGHT_BIT_MIN_COSINE = 0.99
