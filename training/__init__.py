"""Programs that train the models Quire ships; not part of the installed package."""
