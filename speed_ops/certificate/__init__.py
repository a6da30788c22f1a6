"""What an edit did and would do, measured on the weights: the certificate, the forecast, the leak
probe.
"""
