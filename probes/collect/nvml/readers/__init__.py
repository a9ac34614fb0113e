"""What is read of one GPU, a file for each subject: new calls first, older ones where a driver lacks them."""
