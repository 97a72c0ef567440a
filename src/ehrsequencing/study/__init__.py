"""A study across hospitals that share no patients: pack a run, run it at each site, merge what the sites publish."""
