"""How far vectors may be from the reference: the only place with such numbers."""

# float32 against float32, another order of summation (design: "Right before compatible").
FP32_MAX_ABS_DIFF = 1e-4
# The same text alone, in a batch, or shuffled.
NEIGHBOUR_MAX_ABS_DIFF = 1e-5
# Hidden states of tiny random models, whose values are of size 1 to 5.
TINY_MODEL_MAX_ABS_DIFF = 2e-5
# 16 bit against float32 (design: "Right before compatible").
SIXTEEN_BIT_MIN_COSINE = 0.9995
# Tiny random models in 8 bit or with weights in float16, against float32: least cosine of a token's hidden state. Of
# vectors the floors of conversion and of `parity` ask for more.
EIGHT_BIT_MIN_COSINE = 0.99
HALF_WEIGHTS_MIN_COSINE = 0.99999
# Mean cosine of a converted model in 8 bit on texts that it was not judged by: the floor of conversion is 0.998, and a
# variant that just reaches it, as on AVX2 whose weights have 7 bits, is a little below it on other texts.
EIGHT_BIT_HELD_OUT_MEAN_COSINE = 0.9975
# Squared error of a product relative to its size: of 8 bit over the whole range of its inputs, about (1/255)^2 twice.
EIGHT_BIT_PRODUCT_ERROR = 2e-4
