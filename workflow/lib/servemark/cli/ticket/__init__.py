"""``servemark ticket``: one bounded text file about a run, to paste into or attach to a ticket of the cluster's support."""

from servemark.cli.ticket.page import LONGEST, Ticket, compile_ticket

__all__ = ["LONGEST", "Ticket", "compile_ticket"]
