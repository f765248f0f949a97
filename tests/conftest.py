from hypothesis import settings

# A loaded machine must not fail a property; a test that hangs is pytest-timeout's to end.
settings.register_profile("muxfleet", deadline=None)
settings.load_profile("muxfleet")
