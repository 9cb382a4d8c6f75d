"""Pure decisions: facts and one clock reading in, a decision or a typed refusal out."""
