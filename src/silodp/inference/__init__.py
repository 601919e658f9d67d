"""Uses of a trained model: prediction, evaluation on labelled images, export to other programs."""
