"""How an encoder runs: packed token ids in, packed hidden states out."""
