"""`ostinato trial`: should I use this? A model and a folder of images in, a page out."""
