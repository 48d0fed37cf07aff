"""What people see of values and runs: drawings, boards, JSON, and the terminal that shows them."""
