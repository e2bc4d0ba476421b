"""A poisson mixture with rare components, fitted from the tensor start and from random ones."""
