"""The life of a request: who asked, who leads, what it waits for, what may be concluded when nobody confirms."""
