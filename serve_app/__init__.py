"""HTTP ingress, OpenAI schema, command line and the one place that deploys; knows no MLX."""
