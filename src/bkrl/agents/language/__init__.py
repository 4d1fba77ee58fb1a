"""A language model as the policy: it scores the names of the actions after a prompt."""
