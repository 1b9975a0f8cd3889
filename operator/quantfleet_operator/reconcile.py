"""From a job, what is observed of its children and the time: what to do next and what to say."""
