"""Between text and token ids: tokenizer, chat template, detokeniser, stop strings."""
