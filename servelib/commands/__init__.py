"""What each subcommand of ``servelib`` takes and does, one module each."""
