"""One module a layout of files: what lies there (`scan`) and how one of them is decoded (`read`)."""
