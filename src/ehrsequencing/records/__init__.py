"""Records: MEDS → visits → tokens → cohorts → arrays on disk. No torch in this package."""
