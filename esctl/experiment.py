"""What a recipe refers to, found and checked before a model is loaded: model, tokenizer, problems, prompts, reward."""
