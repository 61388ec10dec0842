"""Real links: TCP with TLS, heartbeats, dialling again at once, transfers that go on where they stopped."""
