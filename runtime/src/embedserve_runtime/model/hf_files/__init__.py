"""The JSON files of Hugging Face repositories as typed values, one module for each library that writes them.

A model of config.json lies with the family that reads it (`families/`). Where a file has two models here, the second
has the keys that only some folders need: a wrong value of one must not refuse a folder that has no use for it.

tokenizers             tokenizer.json, tokenizer_config.json and special_tokens_map.json
sentence_transformers  modules.json, and the files of the modules
transformers           the keys of config.json that say what a model is, and the index of its weights
peft                   adapter_config.json
model2vec              config.json of a static model
colbert                what PyLate and ColBERT of Stanford write
"""
