"""An erasure for people: charts. Import the modules one by one; each brings its own drawing library when used."""
