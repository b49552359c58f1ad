"""Who updates when, with what it last heard: schedules, impairments, traces."""
