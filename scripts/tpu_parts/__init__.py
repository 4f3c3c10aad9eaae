"""What `scripts/check_tpu` compiles besides operators: steps of models, and collectives."""
