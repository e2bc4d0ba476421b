"""A Poisson mixture with rare components, fitted from the search and from random starts."""
