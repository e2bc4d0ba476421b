"""Binary choice: what six kinds of train travellers would pay for."""
