"""Training a Conductor: the plans of a language model, run for real and rewarded. The algorithm is TRL's."""
