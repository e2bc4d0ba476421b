"""Where the default start wins, ties and loses against random starts."""
