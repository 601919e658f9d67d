"""Using a trained model: on new images, on new labelled data, in other programs."""
