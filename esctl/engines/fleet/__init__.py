"""Many engines as one, through Ray: the candidates of a round are shared out to workers on devices or machines."""
