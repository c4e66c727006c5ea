"""Which sampling defaults a small real model answers plain questions best with."""
