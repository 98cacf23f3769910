"""What the bindings to frameworks share: how gradients are grouped, reduced and compressed."""
