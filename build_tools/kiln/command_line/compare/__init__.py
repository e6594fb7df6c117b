"""The command `kiln compare`: every tensor of a model beside the reference's, in order."""
