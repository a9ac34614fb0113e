"""What an idle notebook's kernel is: Python with torch loaded that waits for the next cell."""

import select
import socket

import moment
import torch

kept = torch.ones(1000, 1000)
server = socket.socket()
server.bind(("127.0.0.1", 0))
moment.now(0)
select.select([server], [], [])
