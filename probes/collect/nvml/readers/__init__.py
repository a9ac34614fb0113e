"""What is read of one GPU, a file for each subject: new calls first, older ones where a driver lacks them.

What cannot be read is a problem of its fields. Only when the GPU or the library is gone, readers raise NvmlError.
"""
