"""MiniGrid's levels that are not BabyAI's: their table, their layouts, and the rules of those with their own `step`."""
