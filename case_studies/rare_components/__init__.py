"""A mixture with rare components, fitted from the tensor start and from random starts."""
