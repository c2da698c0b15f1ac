"""The model card: what a person should know of a model before using it.

It is written with the model, and again when the model has been measured. Everything in it is read
from the folder of the run, or said in the section `card` of the settings; what is not known is left
out.
"""
