"""The optimiser of every network."""

import inspect

import torch


class Adam(torch.optim.Adam):
    """Adam without the decorators that speak to torch's compiler: those load it, which takes one to two seconds.

    No optimiser is compiled here; where there is nothing to unwrap, this is `torch.optim.Adam` itself. With
    `decoupled_weight_decay=True` it is AdamW.
    """

    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Adam.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
