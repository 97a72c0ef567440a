"""What the package costs (`speed`), how well it predicts (`accuracy`), and how near to a known truth (`truth`)."""
